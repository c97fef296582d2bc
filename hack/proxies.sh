#!/bin/sh
# Unpacks Debian's HAProxy, and nginx with its stream module, with what they need and this machine lacks, into a folder, and
# writes scripts "haproxy" and "nginx" there that start them. It installs nothing and needs no root; apt and dpkg must be there.
set -eu
dir=$1
mkdir -p "$dir/debs"
cd "$dir/debs"
# What an installation would add is what is missing here.
packages=$(apt-get --simulate install --no-install-recommends haproxy nginx libnginx-mod-stream | awk '$1 == "Inst" { print $2 }')
[ -z "$packages" ] || apt-get --quiet --quiet download $packages
for deb in *.deb; do
	[ ! -e "$deb" ] || dpkg --extract "$deb" "$dir"
done
rm -r "$dir/debs"
for program in haproxy nginx; do
	cat >"$dir/$program" <<SCRIPT
#!/bin/sh
for lib in "$dir"/usr/lib/*-linux-gnu; do
	export LD_LIBRARY_PATH="\$lib:\${LD_LIBRARY_PATH:-}"
done
program="$dir/usr/sbin/$program"
[ -x "\$program" ] || program=/usr/sbin/$program
exec "\$program" "\$@"
SCRIPT
	chmod +x "$dir/$program"
done
# Where nginx looks for its modules, as Debian has built it, is not here.
modules="$dir/usr/lib/nginx/modules"
[ -e "$modules/ngx_stream_module.so" ] || modules=/usr/lib/nginx/modules
ln -sfn "$modules" "$dir/modules"
