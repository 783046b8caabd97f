mod home;
mod log;
mod notify;
mod otlp;
mod process_metrics;
use crate::cli::ServeArgs;
use crate::config::Loaded;
use crate::message::Quit;
pub(crate) fn serve(_args: &ServeArgs) -> Result<u8, Quit> {
    Ok(0)
}
pub(crate) fn check(_loaded: &Loaded) -> Result<(), Quit> {
    Ok(())
}
