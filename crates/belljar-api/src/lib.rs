//! The facades of the service: each translates one wire format, and nothing else.
