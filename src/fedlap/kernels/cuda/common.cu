// What kernels have in common; it stands before their own text.

constexpr int LANES = 32;  // threads of a warp

__host__ __device__ constexpr int up(int n, int to) { return (n + to - 1) / to * to; }

__device__ __forceinline__ float4 &four(float *at) { return *reinterpret_cast<float4 *>(at); }

// One number or four to shared memory, while the thread goes on.
template <int N = 4> __device__ __forceinline__ void copy(float *to, const float *from) {
#ifdef __CUDA_ARCH__
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (N == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
    for (int k = 0; k < N; ++k) to[k] = from[k];
#endif
}

__device__ __forceinline__ void copied() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
