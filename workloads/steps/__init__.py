"""Steps of what people give to `model.fit`: compiled Keras models and their datasets."""
