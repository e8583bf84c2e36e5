# Begins to answer, then waits until a test writes the rest to a named pipe. The user's message is the
# path of the pipe.
while read -r line; do
	last=$line
done
printf 'half an '
read -r rest <"${last#\[USER\]: }"
printf '%s' "$rest"
