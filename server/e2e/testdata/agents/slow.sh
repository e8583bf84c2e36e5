# Begins to answer, then waits until there is a line in the named pipe that its argument
# names, and ends with that.
while read -r line; do
	last=$line
done
printf '%s: half an ' "${last#\[USER\]: }"
read -r rest <"$1"
printf '%s' "$rest"
