//! The tests of the program, in one program.

mod acme;
mod architectures;
mod cache;
mod cross_check;
mod deterministic;
mod examples;
mod experiments;
mod guest;
mod hub;
mod hub_cluster;
mod idle;
mod install;
mod instructions;
mod lab;
mod lab_push;
mod load;
mod operations;
mod ranks;
mod serve;
mod terminal;
mod tls;
mod tls_client;
mod top;
mod users;
mod version;
mod vm;

// The tests of the generator use the same server here and in the generator's crate.
#[allow(dead_code, reason = "the tests here use a part of it")]
#[path = "../../../load/tests/end_to_end/server.rs"]
mod load_server;
