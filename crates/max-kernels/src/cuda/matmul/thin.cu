// What the functions for products of few rows share: the sum over p of x[b, r, p] * w[b, p, j], for up to ROWS rows with unit
// stride along p. What happens to an element of a product is a function, `finish`.

struct Given {
    const IN *x;
    long long batch, m, k, x_batch, x_row, share;
};

// The matrix, and which of its blocks this one is.
struct Matrix {
    const IN *w;
    long long n, w_batch, w_leading, block, blocks;
};

// The number of elements in sixteen bytes.
#define LANES ((int)(16 / sizeof(IN)))

union Vector {
    uint4 whole;
    IN each[16 / sizeof(IN)];
};

// LANES elements from index `at` on; zeros from index `end` on.
__device__ __forceinline__ Vector load(const IN *from, long long at, long long end, bool wide) {
    Vector read;
    if (wide && at + LANES <= end) {
        read.whole = *(const uint4 *)(from + at);
        return read;
    }
    read.whole = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int e = 0; e < LANES; e++) {
        if (at + e < end) read.each[e] = from[at + e];
    }
    return read;
}

// Sixteen bytes that are read once.
__device__ __forceinline__ uint4 once(const IN *from) {
    uint4 read;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(read.x), "=r"(read.y), "=r"(read.z), "=r"(read.w) : "l"(from));
    return read;
}

__device__ __forceinline__ bool is_whole(const void *place, long long stride, long long other) {
    return ((unsigned long long)place | (unsigned long long)(stride * sizeof(IN)) |
            (unsigned long long)(other * sizeof(IN))) % 16 == 0;
}
