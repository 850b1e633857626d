// What kernels have in common; it stands before their own text.

constexpr int LANES = 32;  // threads of a warp

__device__ __forceinline__ float4 &four(float *at) { return *reinterpret_cast<float4 *>(at); }

// Sixteen bytes to shared memory, while the thread goes on.
__device__ __forceinline__ void copy(float *to, const float *from) {
#ifdef __CUDA_ARCH__
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
    for (int k = 0; k < 4; ++k) to[k] = from[k];
#endif
}

__device__ __forceinline__ void copied() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

