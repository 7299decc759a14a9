// out[r, ..] = the elements of the blocks at source[r, ..]. A thread decodes four neighbouring elements of a group.

extern "C" __global__ void __launch_bounds__(256) NAME(
    const unsigned char *source, OUT *out, long long rows, long long blocks, long long source_row, long long out_row) {
    constexpr unsigned int PARTS = ELEMENTS / 4;
    const long long all = rows * blocks * PARTS;
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < all; at += gridDim.x * 256ll) {
        const long long number = at / PARTS;
        const unsigned int first = (unsigned int)(at % PARTS) * 4;
        // Most numbers fit in 32 bits, which divide much faster.
        const bool narrow = (((unsigned long long)number | (unsigned long long)blocks) >> 32) == 0;
        const long long row = narrow ? (unsigned int)number / (unsigned int)blocks : number / blocks;
        const long long place = number - row * blocks;
        const unsigned char *block = source + row * source_row + place * BYTES;
        const float scale = scale_at(block, first / GROUP), min = min_at(block, first / GROUP);
        float4 values;
        values.x = decoded(code_at(block, first), scale, min);
        values.y = decoded(code_at(block, first + 1), scale, min);
        values.z = decoded(code_at(block, first + 2), scale, min);
        values.w = decoded(code_at(block, first + 3), scale, min);
        OUT *to = out + row * out_row + place * ELEMENTS + first;
        if (((unsigned long long)to & 15) == 0) {
            *(float4 *)to = values;
        } else {
            to[0] = values.x;
            to[1] = values.y;
            to[2] = values.z;
            to[3] = values.w;
        }
    }
}
