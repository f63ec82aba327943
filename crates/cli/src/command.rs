//! One file a command.

pub(crate) mod cache;
pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod ctl;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod idle;
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod push;
pub(crate) mod serve;
pub(crate) mod subscribe;
mod tls_client;
pub(crate) mod top;
pub(crate) mod vm;
