// What the functions share that compute products in tiles of 64 x 64, for every type: a block of 256 threads adds slices
// of 16 along the depth, in order, which it reads into shared memory; each thread has sixteen sums.

#define TILE 64
#define DEPTH 16

struct Tile {
    SUM sums[4][4];
};

// The slices of both sides, of TILE rows and of TILE columns.
struct Slices {
    SUM left[DEPTH][TILE + 1];
    SUM right[DEPTH][TILE + 1];
};

// Fills a slice from a function of a row, or a column, and a depth. Neighbouring threads read neighbours in memory: those
// along the depth, or those in rows or columns.
template <class Read> __device__ __forceinline__ void fill(SUM (&slice)[DEPTH][TILE + 1], const bool along, Read read) {
    for (int at = threadIdx.x; at < TILE * DEPTH; at += 256) {
        const int i = along ? at / DEPTH : at % TILE, p = along ? at % DEPTH : at / TILE;
        slice[p][i] = read(i, p);
    }
}

// Adds the products of slices that have been filled; they may be filled again afterwards.
__device__ __forceinline__ void add_products(Tile &tile, const Slices &slices) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < DEPTH; p++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                tile.sums[i][j] = STEP(slices.left[p][y + 16 * i], slices.right[p][x + 16 * j], tile.sums[i][j]);
            }
        }
    }
    __syncthreads();
}

// The row and the column in the tile of the sums of a thread.
__device__ __forceinline__ int row_of(const int i) { return threadIdx.x / 16 + 16 * i; }
__device__ __forceinline__ int column_of(const int j) { return threadIdx.x % 16 + 16 * j; }
