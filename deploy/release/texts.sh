#!/bin/sh
# Writes the manual page and the completions, which the program prints, to a folder:
#
#	sh deploy/release/texts.sh build/texts
set -eu
out=$1
mkdir -p "$out/man" "$out/completions"
outbox=$(mktemp)
trap 'rm -f "$outbox"' EXIT
go build -o "$outbox" ./cmd/outbox
"$outbox" man >"$out/man/outbox.1"
"$outbox" completion bash >"$out/completions/outbox.bash"
"$outbox" completion zsh >"$out/completions/_outbox"
"$outbox" completion fish >"$out/completions/outbox.fish"
