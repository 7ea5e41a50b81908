# Sourced by scripts that take packages of a later Debian than this machine's, without installing them.
suite=trixie

# Runs apt-get with lists of its own; fails where the system is no Debian.
debian() { # folder for the lists, deb or deb-src, architecture, what apt-get has to do
  local folder sources=/etc/apt/sources.list.d/debian.sources
  [ -e "$sources" ] || return
  mkdir -p "$1"/{parts,lists/partial,cache/archives/partial}
  folder=$(cd "$1" && pwd)
  sed -n "/^\$/q; s/^Types:.*/Types: $2/; s/^Suites:.*/Suites: $suite/; p" "$sources" >"$folder/parts/releases.sources"
  local options=(-qq -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$folder/parts"
    -o "Dir::State::Lists=$folder/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$folder/cache"
    -o "APT::Architecture=$3" -o "APT::Architectures=$3" -o "APT::Sandbox::User=$(id -un)")
  [ -n "$(ls "$folder"/lists/*_main_* 2>/dev/null)" ] || apt-get "${options[@]}" update
  apt-get "${options[@]}" "${@:4}"
}
