# Read by the scripts here, in the root of the sources: what both packages say of themselves.

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=${CARGO_TARGET_DIR:-target}

# The same sources make the same package, whenever that is.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

# The newest version of glibc's symbols in a program, so the oldest glibc that it runs on.
needed_glibc() { objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | sed -n '$s/GLIBC_//p'; }

# Files as anybody may have them, and from the moment of the sources.
normalize() {
	find "$1" -type d -exec chmod 755 {} +
	find "$1" -type f ! -perm /111 -exec chmod 644 {} +
	find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}
