// Quantizes the rows of the left operand, for functions that multiply them several times.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const IN *x, unsigned char *codes, uint2 *scales, long long rows, long long k, long long x_row, long long x_col,
    long long interleaved) {
    const long long groups = k / 32, all = rows * groups;
    const int member = threadIdx.x % 8;
    for (long long at = (long long)blockIdx.x * 32 + threadIdx.x / 8; at < all; at += (long long)gridDim.x * 32) {
        const long long row = at / groups, group = at - row * groups, place = (row / 8 * groups + group) * 8 + row % 8;
        float values[4];
        read_elements(values, x + row * x_row + group * 32 * x_col, x_col, member);
        quantize(values, member, interleaved != 0, codes + place * 32, scales + place);
    }
}
