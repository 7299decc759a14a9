#!/bin/sh
# Prints the table of docs/generate.md: how large the model is in each encoding, and how well it predicts stories that it never saw.
#
#     sh models/box/perplexity.sh FOLDER
#
# FOLDER is what train.py made. MAX is the command if it is not on the path: MAX=target/release/max.
set -e
here=$(dirname "$0")
max=${MAX:-max}
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
echo '| weights | size of the file | perplexity |'
echo '|---|---:|---:|'
for form in float32 bfloat16 float16 q8_0 q6_k q5_k q4_k q4_0; do
    "$max" convert "$1/model.safetensors.index.json" "$scratch/box.gguf" --to "$form" > "$scratch/said"
    size=$(wc -c < "$scratch/box.gguf" | awk '{ printf "%.1f MB", $1 / 1e6 }')
    "$max" perplexity --model "$1" --quantize "$form" --file "$here/heldout.txt" > "$scratch/said"
    echo "| $form | $size | $(awk '{ print $2 }' "$scratch/said") |"
done
