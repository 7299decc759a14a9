// Convolutions as implicit GEMMs of windows and filters, for every type, in tiles of positions and filters of a group.

extern "C" __global__ void __launch_bounds__(256) NAME(PARAMETERS) {
    __shared__ Slices slices;
    __shared__ Window windows[TILE];
    __shared__ long long taps[DEPTH][4];
    const long long positions = batch * out_height * out_width;
    const long long group_filters = filters / groups, group_channels = channels / groups;
    const long long whole = taps_down * taps_across * group_channels, begin = blockIdx.y * part;
    const long long depth = begin + part < whole ? begin + part : whole;
    out += blockIdx.y * part_size;
    const long long across = (group_filters + TILE - 1) / TILE, down = (positions + TILE - 1) / TILE;
    for (long long number = blockIdx.x; number < across * down * groups; number += gridDim.x) {
        const long long column = number % across * TILE, row = number / across % down * TILE;
        const long long group = number / (across * down);
        const IN *image = input + group * group_channels * in_channel;
        const IN *weights = filter + (group * group_filters + column) * tap_filter;
        if (threadIdx.x < TILE) {
            Window window = {0, NOWHERE, NOWHERE};
            if (row + threadIdx.x < positions) WINDOW(row + threadIdx.x, window);
            windows[threadIdx.x] = window;
        }
        Tile tile = {};
        for (long long start = begin; start < depth; start += DEPTH) {
            if (threadIdx.x < DEPTH) {
                // The offsets of each tap of the slice from the start of a window and of the filter.
                const long long p = start + threadIdx.x;
                long long channel, j;
                const long long tap = divide(p, group_channels, channel);
                const long long i = divide(tap, taps_across, j);
                taps[threadIdx.x][0] = p < depth ? i * dilation_down : NOWHERE;
                taps[threadIdx.x][1] = j * dilation_across;
                taps[threadIdx.x][2] = channel * in_channel;
                taps[threadIdx.x][3] = i * tap_down + j * tap_across + channel * tap_channel;
            }
            __syncthreads();
            fill(slices.left, in_channel == 1, [&](const int i, const int p) {
                const long long y = windows[i].y + taps[p][0], x = windows[i].x + taps[p][1];
                const bool inside = within(y, height) && within(x, width);
                const IN *from = image + windows[i].image + y * in_down + x * in_across + taps[p][2];
                return inside ? SUM_OF_IN(*from) : SUM(0);
            });
            fill(slices.right, tap_filter != 1, [&](const int j, const int p) {
                const bool inside = column + j < group_filters && start + p < depth;
                return inside ? SUM_OF_IN(weights[taps[p][3] + j * tap_filter]) : SUM(0);
            });
            add_products(tile, slices);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const long long position = row + row_of(i);
            if (position >= positions) continue;
            long long place;
            PLACE(position, place);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const long long at = column + column_of(j);
                if (at < group_filters) {
                    out[place + (group * group_filters + at) * out_filter] = OUT_OF(tile.sums[i][j]);
                }
            }
        }
        __syncthreads();
    }
}
