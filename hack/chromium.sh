#!/bin/sh
# Unpacks Debian's headless Chromium, with what it needs and this machine lacks, into a folder, and writes
# a script "chromium" there that starts it. It installs nothing and needs no root; apt and dpkg must be there.
set -eu
dir=$1
mkdir -p "$dir/debs"
cd "$dir/debs"
# What an installation would add is what is missing here.
packages=$(apt-get --simulate install --no-install-recommends chromium-headless-shell fonts-dejavu-core | awk '$1 == "Inst" { print $2 }')
[ -z "$packages" ] || apt-get --quiet --quiet download $packages
for deb in *.deb; do
	[ ! -e "$deb" ] || dpkg --extract "$deb" "$dir"
done
rm -r "$dir/debs"
cat >"$dir/chromium" <<SCRIPT
#!/bin/sh
for lib in "$dir"/usr/lib/*-linux-gnu; do
	export LD_LIBRARY_PATH="\$lib:\$lib/pulseaudio:\${LD_LIBRARY_PATH:-}"
done
shell="$dir/usr/lib/chromium/chromium-headless-shell"
[ -x "\$shell" ] || shell=/usr/lib/chromium/chromium-headless-shell
XDG_DATA_HOME="$dir/usr/share" exec "\$shell" "\$@"
SCRIPT
chmod +x "$dir/chromium"
