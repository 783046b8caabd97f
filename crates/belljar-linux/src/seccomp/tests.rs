//! Tests of the policy, the compiler and the checked-in files.

mod agreement;
mod attacks;
mod checked_in;
mod numbers;
