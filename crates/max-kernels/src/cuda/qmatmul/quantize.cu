// Quantizes the rows of the left operand, for functions that multiply them several times. For each group of 32 elements and
// each row there are 32 bytes, and a scale with sums of the bytes: that of the first 16 in the lower half of a word and that of
// all of them in the upper half. Up to eight rows follow each other in every group.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *x, unsigned char *codes, uint2 *scales, long long rows, long long k, long long x_row, long long x_col,
    long long interleaved) {
    const long long groups = k / 32, all = rows * groups;
    const int member = threadIdx.x % 4;
    // Lanes without a group of their own repeat the last one.
    for (long long start = (long long)blockIdx.x * 64 + threadIdx.x / 32 * 8; start < all; start += (long long)gridDim.x * 64) {
        const long long own = start + threadIdx.x % 32 / 4, at = own < all ? own : all - 1;
        const long long row = at / groups, group = at - row * groups, place = (row / 8 * groups + group) * 8 + row % 8;
        float values[8];
        read_elements(values, x + row * x_row + group * 32 * x_col, x_col, member);
        const Unit unit = quantize(values, member, interleaved != 0, codes + place * 32);
        if (member == 0) {
            const unsigned sums = ((unsigned)unit.half & 0xffff) | (unsigned)unit.all << 16;
            scales[place] = make_uint2(__float_as_uint(unit.scale), sums);
        }
    }
}
