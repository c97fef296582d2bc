#!/bin/sh
# unpack.sh DIR "PACKAGE..." PROGRAM...: unpacks packages of Debian, with what they need and this machine lacks, into a folder, and
# writes a script there for each program that starts it. It installs nothing and needs no root; apt and dpkg must be there.
set -eu
dir=$1 wanted=$2
shift 2
mkdir -p "$dir/debs"
cd "$dir/debs"
# What an installation would add is what is missing here.
packages=$(apt-get --simulate install --no-install-recommends $wanted | awk '$1 == "Inst" { print $2 }')
[ -z "$packages" ] || apt-get --quiet --quiet download $packages
for deb in *.deb; do
	[ ! -e "$deb" ] || dpkg --extract "$deb" "$dir"
done
rm -r "$dir/debs"
for program; do
	cat >"$dir/$program" <<SCRIPT
#!/bin/sh
for lib in "$dir"/usr/lib/*-linux-gnu "$dir"/lib/*-linux-gnu; do
	export LD_LIBRARY_PATH="\$lib:\${LD_LIBRARY_PATH:-}"
done
program="$dir/usr/sbin/$program"
[ -x "\$program" ] || program=/usr/sbin/$program
exec "\$program" "\$@"
SCRIPT
	chmod +x "$dir/$program"
done
