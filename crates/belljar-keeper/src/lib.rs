//! The service without a wire: what a sandbox may do and for how long.
