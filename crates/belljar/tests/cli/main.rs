//! The command line tool, from outside: what it prints, where, and with which status it ends.

mod bad_input;
mod files;
mod host;
mod info;
mod run;
mod shell;
mod streams;
