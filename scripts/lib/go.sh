# shellcheck shell=bash
# Programs built from Go modules: a pinned toolchain, modules compared with their sums, results that appear whole.
# Sourced, never run, after common.sh and apt.sh. A caller has set `set -euo pipefail`.
#
# Invariants:
# 1. Nothing is used whose sum is not the one named here or by the caller.
# 2. Everything goes below $go_dir, which the caller removes; programs leave it by `publish`.
#
# Failure modes: a module that is not reached or has another sum: the end, with the reason; the log is $deps_dir/go.log.

go_version=1.26.8
declare -A toolchain_sums=(
    [amd64]=h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=
    [arm64]=h1:sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc=
)
# shellcheck disable=SC2154 # common.sh sets deps_dir.
go_dir=$deps_dir/go

# clean_go GO ARGUMENT...: runs GO without this machine's settings, but for those that say where modules come from.
clean_go() {
    local go=$1
    shift
    mkdir -p "$go_dir/empty"
    (cd "$go_dir/empty" && unset GOROOT GOOS GOARCH GOAMD64 GOARM64 GOEXPERIMENT &&
        GOPATH=$go_dir/path GOMODCACHE=$go_dir/path/pkg/mod GOCACHE=$go_dir/cache GOBIN=$go_dir/bin HOME=${HOME:-$go_dir} \
            GOFLAGS=-modcacherw GO111MODULE=on GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 "$go" "$@")
}

# at_least VERSION WANTED: whether VERSION is WANTED or newer.
at_least() {
    [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# find_go: prints the path of a Go on this machine that is new enough, or nothing.
find_go() {
    local go version
    for go in "$(command -v go || true)" /usr/local/go/bin/go /usr/lib/go/bin/go; do
        if [ -x "$go" ]; then
            version=$(clean_go "$go" env GOVERSION 2>/dev/null || true)
            version=${version%% *}
            if [[ $version =~ ^go[0-9]+(\.[0-9]+)+$ ]] && at_least "${version#go}" "$go_version"; then
                printf '%s\n' "$go"
                return 0
            fi
        fi
    done
}

# fetch_module GO MODULE VERSION SUM: fetches it, compares its sum, prints its folder.
fetch_module() {
    local answer sum
    if ! answer=$(clean_go "$1" mod download -json "$2@$3" 2>>"$deps_dir/go.log"); then
        printf '%s\n' "$answer" | sed -n 's/^[[:space:]]*"Error": "\(.*\)",\{0,1\}$/\1/p' >>"$deps_dir/go.log"
        tail -n 5 "$deps_dir/go.log" >&2
        die "could not fetch the Go module $2@$3"
    fi
    sum=$(sed -n 's/^[[:space:]]*"Sum": "\([^"]*\)".*$/\1/p' <<<"$answer")
    [ "$sum" = "$4" ] || die "the Go module $2@$3 has the sum '$sum', not '$4': not used"
    sed -n 's/^[[:space:]]*"Dir": "\([^"]*\)".*$/\1/p' <<<"$answer"
}

# bootstrap_go: fetches the pinned toolchain with an older Go and prints the path of its go command.
bootstrap_go() {
    local arch old folder
    arch=$(dpkg --print-architecture)
    [ -n "${toolchain_sums[$arch]:-}" ] || die "no Go toolchain is pinned for $arch: install Go $go_version or newer"
    old=$(command -v go || true)
    if [ -z "$old" ]; then
        apt_install golang-go
        old=/usr/bin/go
    fi
    say "fetching Go $go_version by means of $("$old" env GOVERSION)"
    folder=$(fetch_module "$old" golang.org/toolchain "v0.0.1-go$go_version.linux-$arch" "${toolchain_sums[$arch]}")
    find "$folder/bin" "$folder/pkg/tool" -type f -exec chmod a+x {} +
    printf '%s\n' "$folder/bin/go"
}

# publish FROM TO: TO appears whole or not at all; a running program keeps its own file.
publish() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.$$"
    mv -f "$2.$$" "$2"
}
