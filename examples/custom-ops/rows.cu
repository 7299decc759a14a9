// Custom ops in CUDA C++: KernelLibrary(paths=["rows.cu"]). Lines of the form "max.key: value" declare the ops; a function
// gets the operands, the results, the named sizes and the parameters.

// max.op: scale_rows
// max.signature: T[n, k], float32[n] -> T[n, k]
// max.threads: n * k
extern "C" __global__ void scale_rows(const T* x, const float* by, T* y, long long n, long long k) {
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < n * k) y[at] = (T)(x[at] * by[at / k]);
}

// max.op: row_sums
// max.signature: float32[n, k] -> float32[n]
// max.blocks: n
// max.block: 128
// max.parameters: shift
extern "C" __global__ void row_sums(const float* x, float* sums, long long n, long long k, long long shift) {
    __shared__ float parts[128];
    float sum = 0;
    for (long long at = threadIdx.x; at < k; at += 128) sum += x[blockIdx.x * k + at];
    parts[threadIdx.x] = sum;
    for (int half = 64; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = parts[0] + shift;
}
