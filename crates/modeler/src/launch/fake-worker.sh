#!/bin/sh
# Stands in for `sidestep bench worker` in tests: it plays a worker's part and measures
# nothing. It lies beside the files that tell it its part (client.sh, server.sh), by a
# symbolic link, and leaves its traces there.
home=$(dirname "$0")
echo "$*" >> "$home/command-lines"
if [ "$1" = run ]; then
    while [ "$1" != -- ]; do
        [ "$1" = --config ] && cat "$2" >> "$home/configurations"
        shift
    done
    shift
    exec "$@"
fi
echo $$ >> "$home/processes"
read -r job
echo "$job" >> "$home/jobs"
case "$job" in
*'"role":{"server":'*)
    # The address it is to listen at.
    address=$(echo "$job" | sed 's/.*"server":{"[a-z]*":"\([^"]*\)".*/\1/')
    . "$home/server.sh"
    ;;
*)
    . "$home/client.sh"
    ;;
esac
