"""Operations on images that are native."""
