// Code that all kernels share; it precedes their sources.

constexpr int LANES = 32;  // threads of a warp

__host__ __device__ constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }

__device__ __forceinline__ float4 &as_float4(float *at) { return *reinterpret_cast<float4 *>(at); }

// Copy one float or four to shared memory asynchronously.
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

__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
