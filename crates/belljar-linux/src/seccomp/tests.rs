//! Tests of the policy, the compiler and what is checked in.

mod agreement;
mod attacks;
mod checked_in;
mod numbers;
