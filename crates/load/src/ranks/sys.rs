//! The calls into an MPI library that is loaded at run time.
#![allow(unsafe_code)]

use anyhow::{Context, Result, ensure};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_void};

/// MPI_MAX_LIBRARY_VERSION_STRING is 8192 in MPICH and 256 in Open MPI.
const VERSION_BYTES: usize = 8192;

/// MPICH's handles, the same in all libraries of its ABI since 2014 (MPICH, Intel MPI, MVAPICH,
/// Cray MPICH): MPI_COMM_WORLD and MPI_BYTE of its mpi.h.
const MPICH_COMM_WORLD: c_int = 0x4400_0000;
const MPICH_BYTE: c_int = 0x4c00_010d;

/// The functions that are used. The handle type differs: in Open MPI a pointer to an object of the
/// library, in MPICH an int. The signatures are those of the MPI standard.
struct Functions<H> {
    init: unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int,
    rank: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    size: unsafe extern "C" fn(H, *mut c_int) -> c_int,
    broadcast: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, H) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    world: H,
    byte: H,
}

/// The data that the library reports.
#[derive(Debug)]
pub(super) struct MpiJob {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The first line of the library's version text.
    pub(super) version: String,
}

/// An MPI library. It is never unloaded, because its exit handlers and threads may outlive the last
/// call.
#[derive(Clone, Copy)]
pub(super) struct MpiLibrary(&'static Library);

impl MpiLibrary {
    /// Loads the library `name`, a file or a name for the dynamic linker.
    ///
    /// # Errors
    /// The dynamic linker's error, which names the missing file or symbol.
    pub(super) fn open(name: &str) -> Result<Self> {
        // SAFETY: loading runs the library's constructors; it is the MPI library that the launcher or
        // the user names, whose constructors are meant to run in any program. RTLD_GLOBAL is needed
        // because Open MPI's own plugins look for its symbols in the process.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }?;
        Ok(Self(Box::leak(Box::new(library))))
    }

    /// Starts MPI, broadcasts rank 0's `rendezvous`, and ends MPI. Only rank 0 calls
    /// `make_rendezvous`. Must be called at most once in a process.
    ///
    /// # Errors
    /// The library has an unknown ABI, or a call failed. (Most MPI failures end the process by
    /// default, and the launcher reports them.)
    pub(super) fn join_job(
        self,
        rendezvous: &mut [u8],
        make_rendezvous: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<MpiJob> {
        let library = self.0;
        let version = version(library)?;
        let object = |symbol: &[u8]| {
            // SAFETY: the symbols are variables; Open MPI's mpi.h uses their addresses as handles, and
            // nothing is read through them here. No other ABI has them.
            unsafe { library.get::<*mut c_void>(symbol) }.map(|object| object.as_raw_ptr())
        };
        if let (Ok(world), Ok(byte)) =
            (object(b"ompi_mpi_comm_world\0"), object(b"ompi_mpi_byte\0"))
        {
            return functions(library, world, byte)?.meet(rendezvous, make_rendezvous, version);
        }
        let is_mpich =
            ["MPICH", "Intel", "MVAPICH", "CRAY"].iter().any(|name| version.contains(name));
        ensure!(is_mpich, "it is {version:?}: neither of Open MPI's ABI nor of MPICH's");
        functions(library, MPICH_COMM_WORLD, MPICH_BYTE)?.meet(rendezvous, make_rendezvous, version)
    }
}

fn version(library: &Library) -> Result<String> {
    let mut text = vec![0u8; VERSION_BYTES];
    let mut length: c_int = 0;
    // SAFETY: MPI-3.0 §8.1.1: MPI_Get_library_version(char *, int *) may be called before MPI_Init; the
    // buffer is as long as the longest text of any of the libraries.
    let code = unsafe {
        let call = library
            .get::<unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int>(
                b"MPI_Get_library_version\0",
            )
            .context("no MPI library of version 3 or later")?;
        call(text.as_mut_ptr().cast(), &raw mut length)
    };
    ensure!(code == 0, "MPI_Get_library_version failed with {code}");
    text.truncate(usize::try_from(length).unwrap_or(0));
    let text = String::from_utf8_lossy(&text);
    // Depending on its version, MPICH ends the text with a zero byte.
    let line = text.trim_matches('\0').lines().next().unwrap_or_default();
    Ok(line.split(", ").next().unwrap_or_default().replace('\t', " ").trim().to_owned())
}

/// Looks up the functions.
fn functions<H: Copy>(library: &'static Library, world: H, byte: H) -> Result<Functions<H>> {
    // SAFETY: the types are those of the MPI standard's C binding, with the handle type of the ABI
    // that the caller has found; the library is never unloaded.
    unsafe {
        Ok(Functions {
            init: *library.get(b"MPI_Init\0")?,
            rank: *library.get(b"MPI_Comm_rank\0")?,
            size: *library.get(b"MPI_Comm_size\0")?,
            broadcast: *library.get(b"MPI_Bcast\0")?,
            finalize: *library.get(b"MPI_Finalize\0")?,
            world,
            byte,
        })
    }
}

impl<H: Copy> Functions<H> {
    fn meet(
        &self,
        rendezvous: &mut [u8],
        make_rendezvous: impl FnOnce(&mut [u8]) -> Result<()>,
        version: String,
    ) -> Result<MpiJob> {
        let ok = |call: &str, code: c_int| {
            ensure!(code == 0, "{call} of {version} failed with {code}");
            Ok(())
        };
        let length = c_int::try_from(rendezvous.len()).context("the rendezvous is too long")?;
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: MPI-2 allows null for both arguments; the process has not started MPI before.
        ok("MPI_Init", unsafe { (self.init)(std::ptr::null_mut(), std::ptr::null_mut()) })?;
        // SAFETY: MPI is running; `world` is its communicator, the integers are live.
        ok("MPI_Comm_rank", unsafe { (self.rank)(self.world, &raw mut rank) })?;
        // SAFETY: as above.
        ok("MPI_Comm_size", unsafe { (self.size)(self.world, &raw mut size) })?;
        // An error is reported after the broadcast, in which all other ranks wait for this one.
        let made = if rank == 0 { make_rendezvous(rendezvous) } else { Ok(()) };
        // SAFETY: the buffer has `length` bytes, the same number on every rank.
        let code = unsafe {
            (self.broadcast)(rendezvous.as_mut_ptr().cast(), length, self.byte, 0, self.world)
        };
        ok("MPI_Bcast", code)?;
        // SAFETY: every rank calls it once, and no MPI function is called after it.
        ok("MPI_Finalize", unsafe { (self.finalize)() })?;
        made?;
        Ok(MpiJob {
            rank: u32::try_from(rank).context("a negative rank")?,
            size: u32::try_from(size).context("a negative size")?,
            version,
        })
    }
}
