//! The tests of the crate's public interface, in one program.

mod run;
mod sample;
