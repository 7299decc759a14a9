// Activations as bytes: 32 elements of a row share a scale, the largest magnitude over 127. Lanes in fours quantize 32 elements,
// eight each, and write them in the order in which they are multiplied.

// The scale of 32 elements, and the sums of the bytes of the first 16 and of all of them.
struct Unit {
    float scale;
    int half, all;
};

// Reads the eight elements of a lane.
__device__ __forceinline__ void read_elements(float (&values)[8], const IN *row, long long step, int member) {
    const IN *const from = row + member * 8 * step;
    if (step == 1 && (unsigned long long)from % 16 == 0) {
        union {
            uint4 whole[sizeof(IN) / 2];
            IN each[8];
        } read;
#pragma unroll
        for (int i = 0; i < (int)sizeof(IN) / 2; i++) read.whole[i] = ((const uint4 *)from)[i];
#pragma unroll
        for (int e = 0; e < 8; e++) values[e] = SUM_OF_IN(read.each[e]);
    } else {
#pragma unroll
        for (int e = 0; e < 8; e++) values[e] = SUM_OF_IN(from[e * step]);
    }
}

// A quotient rounded to nearest, from the reciprocal of the divisor rounded to nearest, if nothing on the way is subnormal.
__device__ __forceinline__ float quotient(float number, float divisor, float reciprocal) {
    const float near = number * reciprocal;
    return fmaf(fmaf(-near, divisor, number), reciprocal, near);
}

// Quantizes them. A group with an element that is not finite has the scale NaN, and one of tiny numbers is zero.
__device__ __forceinline__ Unit quantize(const float (&values)[8], int member, bool interleaved, unsigned char *to) {
    unsigned most = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        // Magnitudes are in the order of their bits, and what is not finite is above the others.
        const unsigned bits = __float_as_uint(values[e]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
#pragma unroll
    for (int apart = 2; apart > 0; apart /= 2) {
        const unsigned other = __shfl_xor_sync(0xffffffffu, most, apart);
        most = other > most ? other : most;
    }
    const bool finite = most < 0x7f800000u, normal = finite && most >= 0x0d800000u;
    const float unit = normal ? quotient(__uint_as_float(most), 127.0f, 1.0f / 127.0f) : 1.0f;
    const float reciprocal = __frcp_rn(unit);
    unsigned codes[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
        // The lowest byte of a float whose last bit counts one.
        codes[e] = normal ? __float_as_uint(quotient(values[e], unit, reciprocal) + 12582912.0f) : 0;
    }
    const auto word = [&](int a, int b, int c, int d) {
        return __byte_perm(__byte_perm(codes[a], codes[b], 0x0040), __byte_perm(codes[c], codes[d], 0x0040), 0x5410);
    };
    const unsigned first = interleaved ? word(0, 2, 4, 6) : word(0, 1, 2, 3);
    const unsigned second = interleaved ? word(1, 3, 5, 7) : word(4, 5, 6, 7);
    unsigned *const place = (unsigned *)to + (interleaved ? member * 2 : member % 2 * 4 + member / 2);
    place[0] = first;
    place[interleaved ? 1 : 2] = second;
    int sum = 0;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(first), "r"(0x01010101u), "r"(sum));
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(second), "r"(0x01010101u), "r"(sum));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    const int whole = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
    return {normal ? unit : finite ? 0.0f : __uint_as_float(0x7fffffffu), sum, whole};
}
