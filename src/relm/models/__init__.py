"""The models. They import nothing else of relm, and run on Python 3.8 with torch 2.0 unless a module says otherwise."""
