# Begins to answer, with as many zeros as its argument tells, and does not end by itself
# for longer than any test waits.
while read -r line; do
	last=$line
done
printf '%s: half an ' "${last#\[USER\]: }"
if [ -n "$1" ]; then
	printf "%0$1d" 0
fi
exec sleep 120
