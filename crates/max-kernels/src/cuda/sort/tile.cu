// A block for every tile of a line: it packs and sorts elements of the source, or finishes the merge of elements in scratch
// memory, and writes them back there, or to the results.

constexpr int TILE = 2048;

extern "C" __global__ void __launch_bounds__(512) NAME(
    const BITS *source, Packed *scratch, BITS *values, long long *indices, long long merges, long long ends,
    long long lines, long long size, long long count, long long tiles, long long length, long long size_0,
    long long size_1, long long size_2, long long size_3, PLACES(from), PLACES(to_values), PLACES(to_indices)) {
    __shared__ Packed x[TILE];
    const Places from = PLACES_OF(from), to_values = PLACES_OF(to_values), to_indices = PLACES_OF(to_indices);
    for (long long block = blockIdx.x; block < lines * tiles; block += gridDim.x) {
        const long long number = block / tiles, start = (block - number * tiles) * TILE;
        if (ends && start >= count) continue;
        Packed *own = scratch + number * tiles * TILE + start;
        const Line line = LINE(number);
        for (unsigned int i = threadIdx.x; i < length; i += blockDim.x) {
            if (merges) {
                x[i] = own[i];
            } else {
                x[i] = start + i < size ? line.at(start + i) : last();
            }
        }
        __syncthreads();
        if (merges) {
            for (unsigned int distance = TILE / 2; distance > 0; distance /= 2) step_in_block(x, TILE, distance, false);
        } else {
            sort_in_block(x, (unsigned int)length);
        }
        for (unsigned int i = threadIdx.x; i < length; i += blockDim.x) {
            if (!ends) {
                own[i] = x[i];
            } else if (start + i < count) {
                line.put(start + i, x[i]);
            }
        }
        __syncthreads();
    }
}
