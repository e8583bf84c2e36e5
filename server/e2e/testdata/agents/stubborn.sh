# Begins to answer, with a number of zeros that is its argument. It then runs for longer than any test
# waits.
while read -r line; do
	last=$line
done
printf '%s: half an ' "${last#\[USER\]: }"
if [ -n "$1" ]; then
	printf "%0$1d" 0
fi
exec sleep 120
