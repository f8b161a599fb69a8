"""Names that would do harm if a page took them for markup."""

ODD = ["<img src=x onerror=hacked=1>", "\"a\" & 'b' <b>", "${body} $$ {{x}}"]
COMMAND = "reverie run </script><script>hacked=1</script>"
