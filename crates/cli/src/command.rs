//! The subcommands, each in its own file or folder, and the modules that several of them share:
//! `control` (the client of the control socket) and `tls_client` (the flags of a TLS client).

pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod ctl;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod idle;
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod password;
pub(crate) mod push;
pub(crate) mod serve;
pub(crate) mod subscribe;
mod tls_client;
pub(crate) mod top;
pub(crate) mod vm;
