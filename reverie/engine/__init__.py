"""One phase in, trained parameters out."""
