use std::{env, io, process};

fn main() -> io::Result<()> {
    for argument in env::args().skip(1) {
        println!("{argument}");
    }
    io::copy(&mut io::stdin(), &mut io::stdout())?;
    process::exit(3);
}
