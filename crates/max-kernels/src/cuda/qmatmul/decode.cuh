// How rows of quantized weights are read: in chunks of 256 elements, which are copied to shared memory as aligned vectors of
// sixteen bytes, and in slices of 32 elements, of which a quad of lanes decodes eight elements each.

#define CHUNK 256
#define SLICE 32
#define GROUPS (CHUNK / GROUP)
#define CHUNK_BYTES (CHUNK / ELEMENTS * BYTES)

// A chunk of a row in shared memory, for a lane of a quad. It starts at a multiple of ALIGNMENT bytes. Words may start anywhere
// if that is below four: then a word is in two, and where these are is the same for all words at the same place in four bytes.
template <int ALIGNMENT> struct Row {
    const unsigned char *start;
    unsigned t;

    __device__ __forceinline__ Row(const unsigned char *start, unsigned t) : start(start), t(t) {}

    // The bytes of this lane from an offset on.
    __device__ __forceinline__ unsigned word(unsigned offset) const {
        if (ALIGNMENT >= 16) {
            const uint4 all = *(const uint4 *)(start + offset);
            return t == 0 ? all.x : t == 1 ? all.y : t == 2 ? all.z : all.w;
        }
        if (ALIGNMENT >= 4) return ((const unsigned *)(start + offset))[t];
        const unsigned char *const place = start + offset % 4;
        const unsigned past = (unsigned)(unsigned long long)place & 3;
        const unsigned *const whole = (const unsigned *)(place - past + (offset - offset % 4)) + t;
        return __funnelshift_r(whole[0], whole[1], past * 8);
    }
};

__device__ __forceinline__ unsigned permute(unsigned a, unsigned b, unsigned selector) {
    unsigned bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
    return bytes;
}

// Inverts bits. The compiler would do that after masks, for each of them.
__device__ __forceinline__ unsigned invert(unsigned word, unsigned bits) {
    unsigned inverted;
    asm("xor.b32 %0, %1, %2;" : "=r"(inverted) : "r"(word), "r"(bits));
    return inverted;
}

// The lowest four bits as bytes.
__device__ __forceinline__ unsigned spread(unsigned bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Twice the floats of four codes of float4 in bytes, as signed bytes: a table of the magnitudes and one of their negatives.
__device__ __forceinline__ unsigned float4_values(unsigned codes) {
    const unsigned magnitudes = codes & 0x07070707u;
    const unsigned selector = permute(magnitudes | magnitudes >> 4, 0, 0x4420);
    const unsigned above = permute(0x03020100u, 0x0c080604u, selector);
    const unsigned below = permute(0xfdfeff00u, 0xf4f8fafcu, selector);
    // The signs of bytes, as masks.
    const unsigned negative = permute(codes << 4, 0, 0xba98);
    return (below & negative) | (above & ~negative);
}

template <int ALIGNMENT> __device__ __forceinline__ float half_at(const unsigned char *at) {
    return from_f16(ALIGNMENT >= 2 ? *(const unsigned short *)at : (unsigned short)(at[0] | at[1] << 8));
}

// Half of the power of two with a biased exponent.
__device__ __forceinline__ float half_power(unsigned exponent) {
    const unsigned subnormal = 0x00200000u << exponent;
    const unsigned bits = exponent < 2 ? subnormal : (exponent - 1) << 23;
    return __uint_as_float(exponent == 255 ? 0x7fffffffu : bits);
}

DECODER

// The values of eight elements of the slice that starts with element `base` of the block at an offset, as bytes: the fourth part
// `t` of each half of the slice, or, if bytes have neighbours, the even and the odd ones of eight neighbours.
template <int ALIGNMENT>
__device__ __forceinline__ void pair(
    const Row<ALIGNMENT> &row, unsigned block, unsigned base, unsigned t, unsigned &first, unsigned &second) {
#if INTERLEAVED
    const unsigned codes = row.word(block + base / 2);
    first = LOWER(codes);
    second = UPPER(codes);
#else
    first = VALUES(codes_at<ALIGNMENT>(row, block, base, t));
    second = VALUES(codes_at<ALIGNMENT>(row, block, base + 16, t));
#endif
}

// Copies sixteen bytes from an address that is a multiple of that.
__device__ __forceinline__ void copy_vector(unsigned char *to, const unsigned char *from) {
#if __CUDA_ARCH__ >= 800
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
#else
    *(uint4 *)to = *(const uint4 *)from;
#endif
}

// Ends a group of copies of this thread.
__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for the copies of this thread but those of the latest groups.
template <int LATEST> __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
#endif
}

// Where bytes are in vectors of sixteen.
__device__ __forceinline__ int skew(const unsigned char *from) { return (int)(unsigned)(unsigned long long)from & 15; }

// Copies the vectors of this lane among those that contain a run of bytes: every LANES-th, of which `left` bytes are left from
// the first one on. Bytes keep their place in vectors. The first and the last vector of a run may have bytes of other rows or
// behind the matrix: a vector with a byte of an allocation is inside of it, as it is aligned.
template <int MOST, int LANES>
__device__ __forceinline__ void copy_vectors(unsigned char *to, const unsigned char *vectors, int left) {
#pragma unroll
    for (int vector = 0; vector < MOST; vector += LANES) {
        if (left > vector * 16) copy_vector(to + vector * 16, vectors + vector * 16);
    }
}

// Copies the vectors with `count` bytes, which then start `skew` bytes after `to`.
template <int MOST, int LANES>
__device__ __forceinline__ void fetch(unsigned char *to, const unsigned char *from, int count, int lane) {
    const int past = skew(from);
    copy_vectors<MOST, LANES>(to + lane * 16, from - past + lane * 16, past + count - lane * 16);
}

// Rows of a matrix, in bytes. The distances between rows of a tile are below 2^31.
struct Weights {
    const unsigned char *codes, *scales;
    long long code_row, scale_row;
    // The number of elements that share a scale, if scales are apart: a power of two if `shift` is not negative.
    int group_size, shift;

    __device__ __forceinline__ int scale_number(int element) const {
        return shift >= 0 ? element >> shift : element / group_size;
    }
    // The rows from a number on, from a chunk on.
    __device__ __forceinline__ Weights from(long long row, int chunk) const {
        Weights rest = *this;
        rest.codes += row * code_row + (long long)chunk * CHUNK_BYTES;
        if (IS_APART) rest.scales += row * scale_row + scale_number(chunk * CHUNK) * SCALE_BYTES;
        return rest;
    }
    __device__ __forceinline__ const unsigned char *codes_of(int row) const { return codes + row * (int)code_row; }
    __device__ __forceinline__ const unsigned char *scales_of(int row) const { return scales + row * (int)scale_row; }
    // The bytes of the scales of the first slices of a chunk.
    __device__ __forceinline__ int scale_count(int chunk, int slices) const {
        const int first = chunk * CHUNK;
        return (scale_number(first + slices * SLICE - 1) + 1 - scale_number(first)) * SCALE_BYTES;
    }

    // The scale and the minimum of a group of a chunk, whose codes and scales are in shared memory.
    __device__ __forceinline__ void factors(
        const unsigned char *codes, const unsigned char *scales, int chunk, int group, float *to) const {
#if IS_APART
        const int first = chunk * CHUNK, number = scale_number(first + group * GROUP) - scale_number(first);
        to[0] = scale_at<1>(scales + number * SCALE_BYTES, 0);
#else
        const unsigned char *block = codes + group * GROUP / ELEMENTS * BYTES;
        const unsigned number = (unsigned)group % (ELEMENTS / GROUP);
        to[0] = scale_at<1>(block, number);
#if HAS_MIN
        to[1] = min_at<1>(block, number);
#endif
#endif
    }
};
