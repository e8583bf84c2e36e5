# Begins to answer, then waits until somebody writes the rest to the named pipe whose path
# is the user's message.
while read -r line; do
	last=$line
done
printf 'half an '
read -r rest <"${last#\[USER\]: }"
printf '%s' "$rest"
