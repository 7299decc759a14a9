// Activations as bytes: 32 elements of a row share a scale, the largest magnitude over 127. For each of these groups and each
// row there are 32 bytes, in the order in which lanes multiply them, and a scale with sums of the bytes: that of the first 16
// in the lower half of a word and that of all of them in the upper half. Up to eight rows follow each other in every group.

// Reads the four elements of a lane of eight, which quantize 32 elements of a row.
__device__ __forceinline__ void read_elements(float (&values)[4], const IN *row, long long step, int member) {
#pragma unroll
    for (int e = 0; e < 4; e++) values[e] = SUM_OF_IN(row[(member * 4 + e) * step]);
}

// Quantizes them. A group with an element that is not finite has the scale NaN, and one of tiny numbers is zero.
__device__ __forceinline__ void quantize(
    const float (&values)[4], int member, bool interleaved, unsigned char *to, uint2 *scale) {
    const unsigned team = 0xffu << (threadIdx.x & 24);
    unsigned most = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        // Magnitudes are in the order of their bits, and what is not finite is above the others.
        const unsigned bits = __float_as_uint(values[e]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) {
        const unsigned other = __shfl_xor_sync(team, most, apart);
        most = other > most ? other : most;
    }
    const bool finite = most < 0x7f800000u, normal = finite && most >= 0x0d800000u;
    const float unit = normal ? __uint_as_float(most) / 127.0f : finite ? 0.0f : __uint_as_float(0x7fffffffu);
    int codes[4], sum = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        codes[e] = normal ? __float2int_rn(values[e] / unit) : 0;
        sum += codes[e];
        codes[e] &= 255;
    }
    if (interleaved) {
        unsigned short *places = (unsigned short *)(to + member / 2 * 8 + member % 2 * 2);
        places[0] = (unsigned short)(codes[0] | codes[2] << 8);
        places[2] = (unsigned short)(codes[1] | codes[3] << 8);
    } else {
        unsigned *place = (unsigned *)(to + member % 4 * 8 + member / 4 * 4);
        *place = (unsigned)(codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24);
    }
    sum += __shfl_xor_sync(team, sum, 2);
    sum += __shfl_xor_sync(team, sum, 1);
    const int whole = sum + __shfl_xor_sync(team, sum, 4);
    if (member == 0) *scale = make_uint2(__float_as_uint(unit), ((unsigned)sum & 0xffff) | (unsigned)whole << 16);
}
