# Begins to answer, then fails.
printf 'half an '
echo 'out of memory' >&2
echo 'the model has 3 GiB, 5 GiB are needed' >&2
exit 3
