//! Redirects and fields by path, by flags and by a configuration file.

use super::{BINARY, INDEX, site};
use pollux_testkit::serve::Serve;

#[test]
fn flags_and_keys_do_the_same() {
    let site = site(10);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("p.toml");
    let text = format!(
        "[[site]]\nroot = {:?}\nredirect = [\"/old/* /new/* 301\"]\nheader-for = [\"/* X-A: b\"]\n\
         error-page = [\"404 /index.html\"]\n",
        site.path()
    );
    std::fs::write(&file, text).unwrap();
    let flags = [
        "--redirect",
        "/old/* /new/* 301",
        "--header-for",
        "/* X-A: b",
        "--error-page",
        "404 /index.html",
    ];
    let by_file = ["--config", file.to_str().unwrap()];
    for server in
        [Serve::start(BINARY, site.path(), &flags), Serve::start(BINARY, site.path(), &by_file)]
    {
        let mut client = server.client();
        let reply = client.get("/old/a");
        assert_eq!((reply.status, reply.field("location")), (301, Some("/new/a")));
        assert_eq!(client.get("/").field("x-a"), Some("b"));
        let reply = client.get("/none");
        assert_eq!((reply.status, reply.text().as_str()), (404, INDEX));
    }
}
