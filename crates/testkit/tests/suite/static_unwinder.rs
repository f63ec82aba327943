//! Tests of `scripts/static-unwinder.c`: in a program that is linked as `scripts/static` links Pollux,
//! the stack can be unwound, as a panic does.

use std::{fs, path::Path, process::Command};

/// The program uses thread keys, as Rust's standard library does: the unwinder needs them.
const PROGRAM: &str = r"
#include <pthread.h>
#include <unwind.h>

static _Unwind_Reason_Code count(struct _Unwind_Context *context, void *frames)
{
    (void)context;
    ++*(int *)frames;
    return _URC_NO_REASON;
}

int main(void)
{
    pthread_key_t key;
    int frames = 0;

    pthread_key_create(&key, 0);
    _Unwind_Backtrace(count, &frames);
    return frames > 0 ? 0 : 1;
}
";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Regression: the first panic once ended the program with SIGSEGV, because the unwinder called a
/// function that was not linked.
#[test]
fn a_static_program_can_be_unwound() {
    if Command::new("musl-gcc").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no musl-gcc");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/static-unwinder.c");
    let unwinder = run(Command::new("gcc").arg("-print-file-name=libgcc_eh.a"));
    fs::copy(unwinder.trim(), at("libunwind.a")).unwrap();
    fs::write(at("program.c"), PROGRAM).unwrap();
    let musl = || {
        let mut command = Command::new("musl-gcc");
        command.args(["-O2", "-Wall", "-Wextra", "-Werror"]).current_dir(&directory);
        command
    };
    let stand_in = stand_in.canonicalize().unwrap();
    run(musl().arg("-fPIE").arg("-c").arg(stand_in).args(["-o", "find.o"]));
    run(Command::new("ar").args(["r", "libunwind.a", "find.o"]).current_dir(&directory));
    // Linked with the table of frames, as rustc requests it.
    let program = ["-static", "-fexceptions", "-Wl,--eh-frame-hdr", "program.c", "libunwind.a"];
    run(musl().args(program).args(["-o", "program"]));
    run(&mut Command::new(at("program")));
}
