"""What a run is: typed settings, the layers they are made of, and presets."""
