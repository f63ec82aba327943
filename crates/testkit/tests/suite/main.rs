//! The tests of the repository itself, its scripts and its packages, in one program.

mod dependencies;
mod documents;
mod failures;
mod imports;
mod layers;
mod packages;
mod publish;
mod run_tests;
mod sleeps;
mod solaris_programs;
mod static_unwinder;
mod tidy;
