"""C++ and CUDA kernels, and the code that compiles, checks and launches them."""
