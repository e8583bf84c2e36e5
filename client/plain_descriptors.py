"""Write descriptors without rules: plain_descriptors.py COMPLETE PLAIN, for the stubs of Python and Java.

The server checks the rules of buf/validate and parley/rules, and clients do not, so their stubs do
not depend on these packages. In this program the options of the rules are unknown fields. Locations
without a comment are left out, too, because no stub uses them.
"""

import pathlib
import sys

from google.protobuf.descriptor_pb2 import FileDescriptorSet

complete, plain = map(pathlib.Path, sys.argv[1:])
known = ("parley/v1/", "google/protobuf/", "google/rpc/")
kept = FileDescriptorSet()
for file in FileDescriptorSet.FromString(complete.read_bytes()).file:
    if file.name.startswith(known):
        file.dependency[:] = [name for name in file.dependency if name.startswith(known)]
        locations = [
            place
            for place in file.source_code_info.location
            if file.name.startswith("parley/") and (place.leading_comments or place.trailing_comments)
        ]
        del file.source_code_info.location[:]
        file.source_code_info.location.extend(locations)
        kept.file.append(file)
kept.DiscardUnknownFields()
plain.write_bytes(kept.SerializeToString(deterministic=True))
