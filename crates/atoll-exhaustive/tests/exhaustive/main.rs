//! Models of protocols, explored exhaustively and compared with the product. One test program: each further one would build the checker
//! again.
#![allow(clippy::unwrap_used)]

mod corfu;
mod scalog;
