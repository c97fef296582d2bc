#!/bin/sh
# Unpacks Debian's HAProxy, and nginx with its stream module, into a folder: see unpack.sh.
set -eu
dir=$1
"$(dirname "$0")/unpack.sh" "$dir" "haproxy nginx libnginx-mod-stream" haproxy nginx
# Where nginx looks for its modules, as Debian has built it, is not here.
modules="$dir/usr/lib/nginx/modules"
[ -e "$modules/ngx_stream_module.so" ] || modules=/usr/lib/nginx/modules
ln -sfn "$modules" "$dir/modules"
